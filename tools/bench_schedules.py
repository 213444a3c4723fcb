"""Step times of the schedules with servers that sleep as long as real ones would. Prints JSON.

Each server answers over HTTP as `mindgspo serve` does, with tokens that mean nothing, after the time that they would
take: `--slots` responses at once, `--token-seconds` per token each. Lengths are drawn anew for each prompt from a
lognormal distribution, cut at the longest; with `--straggler N` one response in N is ten times as slow. Everything else
is a real run: `mindgspo run` on the CPU quickstart's model, its client, its updates.

    python tools/bench_schedules.py [--steps 20] [--skip 3] [--token-seconds 0.02] [--straggler 0] [--only bounded:4]

`--slow-model PORT` serves the quickstart's model instead, until Ctrl-C, with a decode step every `--token-seconds` at
most: for runs with rollout.servers.urls that learn something while generation takes its time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENT = ROOT / "examples" / "arithmetic" / "gspo.yaml"
LONGEST = 64
SCHEDULES = (("sync", 0), ("one_step_off", 1), ("bounded", 1), ("bounded", 2), ("bounded", 4))


def length_of(prompt: int, sample: int) -> int:
    """Tokens of a response, its end included."""
    drawn = np.random.Generator(np.random.Philox(key=[prompt, sample])).lognormal(math.log(16), 0.6)
    return int(np.clip(drawn, 1, LONGEST))


def slowness_of(prompt: int, sample: int, straggler: int) -> float:
    """How many times as long as usual a token of this response takes."""
    return 10.0 if straggler and sample == 0 and prompt % straggler == 1 else 1.0


class SleepingServer:
    """One server: takes requests in their order, `slots` responses at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._version = options, 0
        self._slots = asyncio.Semaphore(options.slots)
        self._stop = asyncio.Event()
        self._running = 0

    def application(self) -> Any:
        """The routes of a completion server."""
        from aiohttp import web

        application = web.Application(client_max_size=1 << 28)
        application.router.add_get("/health", self._health)
        application.router.add_post("/v1/completions", self._complete)
        application.router.add_post("/abort_requests", self._abort)
        application.router.add_post("/update_weights", self._update)
        return application

    async def _health(self, request: Any) -> Any:
        from aiohttp import web

        return web.json_response({"weight_version": self._version})

    async def _complete(self, request: Any) -> Any:
        from aiohttp import web

        asked = await request.json()
        stream = asked["random_stream"]
        self._running += 1
        try:
            ends = [
                self._generate(stream["prompt_index"], sample, stream["start"], asked["max_tokens"])
                for sample in stream["samples"]
            ]
            found = await asyncio.gather(*ends)
        finally:
            self._running -= 1
        choices = [
            {
                "index": index,
                "token_ids": ids,
                "prompt_token_ids": asked["prompt"],
                "logprobs": {"token_logprobs": [-1.0] * len(ids)},
                "finish_reason": reason,
            }
            for index, (ids, reason) in enumerate(found)
        ]
        return web.json_response({"weight_version": self._version, "choices": choices})

    async def _generate(self, prompt: int, sample: int, start: int, most: int) -> tuple[list[int], str]:
        stop = self._stop
        rest = length_of(prompt, sample) - start
        token_s = self._options.token_seconds * slowness_of(prompt, sample, self._options.straggler)
        if stop.is_set():
            return [], "abort"
        turn = asyncio.ensure_future(self._slots.acquire())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([turn, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            turn.cancel()
            return [], "abort"
        began = time.perf_counter()
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(stopped), rest * token_s)
        finally:
            self._slots.release()
            if not stop.is_set():
                stopped.cancel()
        done = min(rest, int((time.perf_counter() - began) / token_s)) if stop.is_set() else rest
        ids = [5 + (7 * prompt + sample + start + place) % 200 for place in range(done)]
        if done < rest:
            return ids, "abort"
        if done == most:
            return ids, "length"
        return [*ids[:-1], self._options.eos], "stop"

    async def _abort(self, request: Any) -> Any:
        from aiohttp import web

        self._stop.set()
        while self._running:
            await asyncio.sleep(0.001)
        self._stop = asyncio.Event()
        return web.json_response({})

    async def _update(self, request: Any) -> Any:
        from aiohttp import web

        self._version = (await request.json())["version"]
        return web.json_response({"weight_version": self._version})


def serve(options: argparse.Namespace) -> None:
    """Serve until somebody ends this process."""
    from aiohttp import web

    async def start() -> None:
        runner = web.AppRunner(SleepingServer(options).application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", options.serve).start()
        await asyncio.Event().wait()

    asyncio.run(start())


def serve_model_slowly(options: argparse.Namespace) -> None:
    """`mindgspo serve` of the quickstart, whose decode steps take at least `--token-seconds`."""
    from mindgspo.config import load_config
    from mindgspo.planner import replica_with_cache_budget
    from mindgspo.rollout.engine import Decoding
    from mindgspo.rollout.server import serve as serve_replica

    advance = Decoding.advance

    def advance_slowly(decoding: Decoding) -> None:
        began = time.perf_counter()
        advance(decoding)
        time.sleep(max(0.0, options.token_seconds - (time.perf_counter() - began)))

    Decoding.advance = advance_slowly
    config = load_config(EXPERIMENT, [f"rollout.slots={options.slots}"], check_files=False)
    listener = socket.socket()
    listener.bind(("127.0.0.1", options.slow_model))
    serve_replica(replica_with_cache_budget(config), listener, key=None, folders=[Path("/")], ready=print)


def measured(schedule: str, staleness: int, urls: list[str], options: argparse.Namespace, folder: Path) -> list[dict]:
    """The metrics of each step of a run."""
    run_dir = folder / f"{schedule}_{staleness}"
    settings = {
        "run_dir": run_dir,
        "rollout.servers.urls": json.dumps(urls),
        "trainer.schedule": schedule,
        "trainer.max_staleness": staleness,
        "trainer.max_steps": options.steps,
        "rollout.max_new_tokens": LONGEST,
        "rollout.slots": options.slots * options.servers,
        "model.max_position_embeddings": 128,
        "rollout.prompts_per_step": options.prompts,
        "rollout.num_generations": 8,
        "warmup": "null",
        "eval.before": "false",
        "eval.every": "null",
        "algorithm.old_log_probs": "recompute",
    }
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "mindgspo.cli", "run", str(EXPERIMENT), *sets]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if "timing_s/step" in one]


def parsed(name: str) -> tuple[str, int]:
    """("bounded", 4) of bounded:4."""
    schedule, _, staleness = name.partition(":")
    return schedule, int(staleness or 0)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--skip", type=int, default=3, help="first steps that do not count: queues fill, graphs compile"
    )
    parser.add_argument("--only", nargs="*", help="schedules, e.g. sync bounded:4")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--token-seconds", type=float, default=0.02)
    parser.add_argument("--straggler", type=int, default=0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--eos", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--slow-model", type=int, metavar="PORT", help="see above")
    options = parser.parse_args()
    if options.slow_model is not None:
        serve_model_slowly(options)
        return
    if options.serve is not None:
        serve(options)
        return
    from mindgspo.config import load_config
    from mindgspo.launch.processes import listen_once
    from mindgspo.tokenization import load_tokenizer

    config = load_config(EXPERIMENT, [])
    eos = load_tokenizer(config.tokenizer, config.model.vocab_size).eos_ids[0]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for schedule, staleness in SCHEDULES if options.only is None else map(parsed, options.only):
            ports = [listen_once(socket.AF_INET, "127.0.0.1", 0) for _ in range(options.servers)]
            own = ["--slots", str(options.slots), "--token-seconds", str(options.token_seconds)]
            own += ["--straggler", str(options.straggler), "--eos", str(eos)]
            servers = [subprocess.Popen([sys.executable, __file__, "--serve", str(port), *own]) for port in ports]
            try:
                steps = measured(
                    schedule, staleness, [f"http://127.0.0.1:{port}" for port in ports], options, Path(folder)
                )
            finally:
                for server in servers:
                    server.terminate()
                    server.wait()
            results.append(summary(schedule, staleness, steps, options))
            print(json.dumps(results[-1]), file=sys.stderr)
    print(json.dumps({"options": {**vars(options), "eos": eos}, "schedules": results}))


def summary(schedule: str, staleness: int, steps: list[dict], options: argparse.Namespace) -> dict[str, Any]:
    """Of the steps behind the first ones, but not of the last, for which nothing is generated ahead any more."""
    steady = steps[options.skip : len(steps) - max(staleness, 1)]

    def mean(name: str) -> float:
        return round(statistics.fmean(step.get(name, 0.0) for step in steady), 4)

    return {
        "schedule": schedule,
        "max_staleness": staleness,
        "step_s": mean("timing_s/step"),
        "steps_s": [round(step["timing_s/step"], 3) for step in steps],
        "gen_s": mean("timing_s/gen"),
        "update_s": mean("timing_s/update_actor"),
        "old_log_prob_s": mean("timing_s/old_log_prob"),
        "hand_over_s": mean("timing_s/update_weights"),
        "trainer_idle_share": mean("schedule/trainer_idle_share"),
        "rollout_idle_share": mean("schedule/rollout_idle_share"),
        "staleness_mean": mean("staleness/token_mean"),
        "staleness_max": max(step.get("staleness/token_max", 0.0) for step in steps),
    }


if __name__ == "__main__":
    main()
