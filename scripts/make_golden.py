#!/usr/bin/env python3
"""Records what tests compare with, or compares with it.

    scripts/make_golden.py [--check] [--ferry build/ferry] [NAME ...]

The files are in tests/golden:

  losses/quickstart.txt   `step loss grad_norm` of the first steps of configs/quickstart.toml on one
                          rank of the CPU
  plan/NAME.txt           what `ferry plan ARGUMENTS` prints; plan/commands.txt has a line `NAME
                          ARGUMENTS` for each

Without names, all of them. --check compares instead of writing, and ends with 1 if anything
differs. Losses may differ by 1e-4 of their value, gradient norms by 1e-3: the matrix products of
processors differ in their rounding.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests/golden"
STEPS = 20
LIMITS = {"loss": 1e-4, "grad_norm": 1e-3}


def train(ferry):
    """[(step, loss, grad_norm)] of the quick start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [ferry, "train", "configs/quickstart.toml", f"run.dir='{folder}/run'",
                   "run.backend=cpu", f"run.stop_at_step={STEPS}", "run.eval_every=0",
                   "checkpoint.every=0", "checkpoint.save_at_exit=false"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with open(f"{folder}/run/metrics.jsonl", encoding="ascii") as lines:
            steps = [json.loads(line) for line in lines]
    return [(step["step"], step["loss"], step["grad_norm"]) for step in steps]


def losses(ferry, path, check):
    """Writes or compares the losses; returns what differs."""
    found = train(ferry)
    if not check:
        path.write_text("".join(f"{step} {loss!r} {norm!r}\n" for step, loss, norm in found))
        return []
    problems = []
    golden = [line.split() for line in path.read_text().splitlines()]
    if len(golden) != len(found):
        return [f"{path.name}: {len(found)} steps, not {len(golden)}"]
    for (step, loss, norm), (_, wanted_loss, wanted_norm) in zip(found, golden):
        for key, value, wanted in (("loss", loss, wanted_loss), ("grad_norm", norm, wanted_norm)):
            wanted = float(wanted)
            if not abs(value - wanted) <= LIMITS[key] * abs(wanted):
                problems.append(f"{path.name}: step {step}: {key} {value}, not {wanted}")
    return problems


def plan_arguments():
    """{name: arguments} of the recorded plans."""
    lines = (GOLDEN / "plan/commands.txt").read_text().splitlines()
    return {name: arguments for name, *arguments in map(str.split, lines)}


def plan(ferry, path, check):
    """Writes or compares the plan of a configuration."""
    text = subprocess.run([ferry, "plan", *plan_arguments()[path.stem]], cwd=ROOT, check=True,
                          text=True, stdout=subprocess.PIPE).stdout
    if not check:
        path.write_text(text)
    elif path.read_text() != text:
        return [f"{path.name}: ferry plan prints something else"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--ferry", default=str(ROOT / "build/ferry"), help="the program")
    parser.add_argument("names", nargs="*", help="such as losses/quickstart or plan/olmoe_1b_7b")
    options = parser.parse_args()
    makers = {"losses/quickstart": losses}
    makers.update({f"plan/{name}": plan for name in plan_arguments()})
    problems = []
    for name in options.names or makers:
        if name not in makers:
            parser.error(f"there is no {name}: {', '.join(makers)}")
        path = GOLDEN / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        problems += makers[name](options.ferry, path, options.check)
        print(f"{name} {'compared' if options.check else 'written'}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
