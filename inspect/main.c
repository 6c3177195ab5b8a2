/* dcp-inspect: looks at checkpoints, and changes nothing. */
#include "cli/main.h"
#include "verbs.h"

static const struct dcp_command *const commands[] = {
    &inspect_show,   &inspect_ls,   &inspect_map,  &inspect_stats, &inspect_diff,
    &inspect_verify, &inspect_dump, &inspect_scan, &inspect_steps, NULL,
};

static const struct dcp_example examples[] = {
    { "dcp-inspect run", "what is in a run folder, and can it be resumed" },
    { "dcp-inspect ls model.safetensors --sort size --limit 10",
      "the ten largest tensors" },
    { "dcp-inspect diff run/step-00001200 out", "is it the same, bit for bit" },
    { "dcp-inspect verify run", "is every byte as it was saved" },
    { 0 },
};

static const struct dcp_exit exits[] = {
    { 0, "done; complete; the same" },
    { 1, "diff: they differ; scan: not all names are known safe" },
    INSPECT_EXITS_FAILED,
};

static const struct dcp_program program = {
    .name = "dcp-inspect",
    .purpose = "look at checkpoints of any known format",
    .about = INSPECT_ABOUT_PATH " Nothing is ever written to it.",
    .commands = commands,
    .examples = examples,
    .exits = exits,
};

int main(int argc, char **argv)
{
    return dcp_main(&program, argc, argv);
}
