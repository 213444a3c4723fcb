"""Word problems whose numbers a small model cannot multiply, and a tool that can.

The policy calls `multiply`, reads the product and ends with "#### product", which the reward function gsm8k judges.
"""

from mindgspo.environments import Environment


class Calculator(Environment):
    tools = ("multiply",)

    def multiply(self, a: int, b: int) -> int:
        """Multiply two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a * b
