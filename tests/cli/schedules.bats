# Schedules of dcp-train: what a run does with them, and what a resume says of them.

setup() {
    load ../lib/train
    cd "$BATS_TEST_TMPDIR"
    make_config
}

# schedule JSON: the section of that text, in train.json.
schedule() {
    python3 - "$1" <<'PYTHON'
import json, sys
config = json.load(open("train.json"))
config["scheduler"] = json.loads(sys.argv[1])
json.dump(config, open("train.json", "w"))
PYTHON
}

# The rates of the steps of a run.
rates() {
    python3 -c 'import json, sys
print(*("%.6g" % json.loads(line)["lr"] for line in open(sys.argv[1])))' "$1/metrics.jsonl"
}

@test "the spelling of PyTorch and DeepSpeed is understood" {
    schedule '{"type": "StepLR", "params": {"step_size": 2, "gamma": 0.5}}'
    train --steps 5 -q
    [ "$(rates run)" = "0.003 0.003 0.0015 0.0015 0.00075" ]
    train --steps 3 -q --set checkpoint.dir=annealed --set scheduler.type=CosineAnnealingLR \
        --set 'scheduler.params={"T_max": "auto", "eta_min": 0.001}'
    [ "$(rates annealed)" = "0.003 0.0025 0.0015" ]
    train --steps 3 -q --set checkpoint.dir=cycle --set scheduler.type=OneCycle \
        --set 'scheduler.params={"cycle_min_lr": 0.1, "cycle_max_lr": 0.2,
                                 "cycle_first_step_size": 4}'
    [ "$(rates cycle)" = "0.1 0.125 0.15" ]
}

@test "a section without a type is an error that names the types" {
    schedule '{"params": {"step_size": 2}}'
    run --separate-stderr -2 train --steps 1
    [[ $stderr == *"train.json: 'scheduler' has no type, so it would do nothing"* ]]
    [[ $stderr == *WarmupLR*OneCycle*LRRangeTest*StepLR*CosineAnnealingLR*ConstantLR* ]]
    [ ! -e run ]
}

@test "resumed is as if never stopped, whatever the schedule" {
    for section in '{"type": "CosineAnnealingLR", "params": {"T_max": 5, "eta_min": 1e-4}}' \
        '{"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2,
          "cycle_first_step_size": 4, "decay_step_size": 1, "decay_lr_rate": 0.5}}'; do
        rm -rf whole parts
        schedule "$section"
        train --steps 12 -q --set checkpoint.dir=whole
        train --steps 7 -q --set checkpoint.dir=parts
        run --separate-stderr -0 train --steps 12 --set checkpoint.dir=parts
        [[ $stderr != *" was "* ]]
        same_run whole parts
    done
}

@test "resumed from another format is as if never stopped" {
    schedule '{"type": "StepLR", "params": {"step_size": 3, "gamma": 0.5}}'
    train --steps 10 -q --set checkpoint.dir=whole
    train --steps 5 -q
    for target in deepspeed universal torch-dist torch; do
        dcp-reshard -q run "$target" --to "$target"
        run --separate-stderr -0 train --steps 10 --set checkpoint.dir=$target-on \
            --resume "$target"
        [[ $stderr != *" was "* ]]
        diff <(rates $target-on) <(rates whole | cut -d ' ' -f 6-)
        dcp-inspect diff -t '*' $target-on whole
    done
}

@test "OneCycle gives its betas to the optimizer" {
    schedule '{"type": "OneCycle", "params": {"cycle_min_lr": 0.003, "cycle_max_lr": 0.003,
               "cycle_min_mom": 0.5, "cycle_max_mom": 0.5, "cycle_first_step_size": 3}}'
    train --steps 6 -q
    train --steps 6 -q --set checkpoint.dir=flat --set 'scheduler={"type": "none"}' \
        --set 'optimizer.params.betas=[0.5, 0.99]'
    diff <(losses run) <(losses flat)
    dcp-inspect diff -t '*' run flat
    train --steps 6 -q --set checkpoint.dir=cycled --set scheduler.params.cycle_max_mom=0.9
    run -1 dcp-inspect diff -t '*' run cycled
}

@test "a resume says which values of the schedule have changed, and takes the new ones" {
    schedule '{"type": "StepLR", "params": {"step_size": 2, "gamma": 0.5}}'
    train --steps 4 -q
    run --separate-stderr -0 train --steps 6 --set scheduler.params.gamma=0.1 \
        --set optimizer.params.lr=0.004
    [[ $stderr == *"optimizer.params.lr was 0.003 and is 0.004: training goes on with"* ]]
    [[ $stderr == *"scheduler.params.gamma was 0.5 and is 0.1: training goes on with"* ]]
    [ "$(grep -c ' was ' <<<"$stderr")" = 2 ]
    [ "$(rates run)" = "0.003 0.003 0.0015 0.0015 4e-05 4e-05" ]
    run --separate-stderr -0 train --steps 7 --set scheduler.type=none
    [[ $stderr == *"scheduler.type was StepLR and is none"* ]]
}

@test "an update that is skipped leaves the schedule where it is" {
    schedule '{"type": "StepLR", "params": {"step_size": 1, "gamma": 0.5}}'
    run --separate-stderr train --steps 6 --set optimizer.params.lr=1e38 \
        --set gradient_clipping=0
    [[ $stderr == *"gradients are not finite, the update is skipped"* ]]
    python3 - <<'PYTHON'
import json
rates = [json.loads(line)["lr"] for line in open("run/metrics.jsonl")]
updates = 1 + sum(a != b for a, b in zip(rates, rates[1:]))
assert 1 <= updates < 6 and rates[-1] == rates[-2] == 1e38 / 2 ** (updates - 1), rates
PYTHON
    dcp-inspect dump run --object scheduler >scheduler.json
    python3 -c 'import json; d = json.load(open("scheduler.json")); assert d["last_epoch"] < 6, d'
}
