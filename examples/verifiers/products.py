"""A taskset of verifiers with a tool: products that a small model cannot compute. The tool counts how often it is
called, in the state that tools and rewards share."""

import random

import verifiers.v1 as vf

__all__ = ["ProductsTaskset"]


class CalledState(vf.State):
    num_calls: int = 0


class Calculator(vf.Toolset[vf.ToolsetConfig, CalledState]):
    TOOL_PREFIX = None

    @vf.tool
    async def multiply(self, a: int, b: int) -> str:
        """Multiply two numbers."""
        self.state.num_calls += 1
        return str(a * b)


class ProductData(vf.TaskData):
    answer: str


class ProductTask(vf.Task[ProductData, CalledState]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(vf.ToolsetConfig())]

    @vf.reward
    async def is_right(self, task: ProductData, trace: vf.Trace) -> float:
        return float(trace.last_reply == f"#### {task.answer}")

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(trace.state.num_calls)


class ProductsTaskset(vf.Taskset[ProductTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        generator = random.Random(0)
        while True:
            a, b = generator.randint(12, 99), generator.randint(12, 99)
            data = ProductData(prompt=f"Tom has {a} boxes of {b} pens. How many pens?", answer=str(a * b))
            yield ProductTask(data, self.config.task)


if __name__ == "__main__":  # verifiers starts a tool server so
    Calculator.run()
