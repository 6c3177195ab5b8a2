"""The peer of tests/unit/trainer/model/test_gpt2_hf.c: trains Hugging Face's GPT-2 with
torch's AdamW.

Reads FOLDER/config.json, which our model wrote, and leaves there: hf_config.json, as
transformers writes it; names.txt, a parameter and its number of elements a line; the
fp32 weights in this order before (first.bin) and after (last.bin) the steps; tokens.bin,
int32; losses.txt and norms.txt, a step a line; logits.bin, behind each token of the
first sequence, after the steps; grads.bin, the gradients of the first step in fp32, and
grads_half.bin, those of the same model in float16 with a loss scale, which is taken out
again.
"""

import copy
import json
import os
import sys

import torch
import transformers

STEPS, BATCH, SEQ_LEN = 10, 4, 32
LOSS_SCALE = 1024
LR, BETAS, EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def main(folder):
    torch.manual_seed(3)
    torch.set_num_threads(1)
    config = transformers.GPT2Config.from_json_file(os.path.join(folder, "config.json"))
    config._attn_implementation = "eager"
    model = transformers.GPT2LMHeadModel(config).float()
    model.train()  # dropout is 0 in the configuration
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(0.05 * torch.randn_like(parameter))

    def save(name, tensors):
        with open(os.path.join(folder, name), "wb") as file:
            for tensor in tensors:
                file.write(tensor.detach().contiguous().numpy().tobytes())

    def save_lines(name, lines):
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.writelines(f"{line}\n" for line in lines)

    save_lines("names.txt", (f"{n} {p.numel()}" for n, p in parameters.items()))
    save("first.bin", parameters.values())
    with open(os.path.join(folder, "hf_config.json"), "w", encoding="utf-8") as file:
        json.dump(config.to_dict(), file)

    shape = (STEPS, BATCH, SEQ_LEN + 1)
    tokens = torch.randint(config.vocab_size, shape, dtype=torch.int32)
    save("tokens.bin", [tokens])

    def gradients(model, scale):
        batch = tokens[0].long()
        logits = model(batch[:, :-1]).logits.float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten()
        )
        (loss * scale).backward()
        grads = [parameter.grad.float() / scale for parameter in model.parameters()]
        model.zero_grad()
        return grads

    save("grads.bin", gradients(model, 1))
    save("grads_half.bin", gradients(copy.deepcopy(model).half(), LOSS_SCALE))

    groups = [
        {"params": [p for p in parameters.values() if p.dim() >= 2],
         "weight_decay": DECAY},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for batch in tokens.long():
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP))
        optimizer.step()
        losses.append(loss)
    save_lines("losses.txt", (f"{loss.item():.9g}" for loss in losses))
    save_lines("norms.txt", (f"{norm.item():.9g}" for norm in norms))
    save("last.bin", parameters.values())
    model.eval()
    with torch.no_grad():
        save("logits.bin", [model(tokens[0, :1, :-1].long()).logits])


if __name__ == "__main__":
    main(sys.argv[1])
