"""How large blocks of slots are in which tokens stand before their experts on CPU."""

from __future__ import annotations

_SMALLEST, _LARGEST = 8, 256


def expert_block_slots(num_assignments: int, num_experts: int) -> int:
    """Slots of a block: the power of two nearest below a quarter of an expert's mean load, from 8 to 256. Larger blocks
    stand half empty, smaller ones copy the experts' matrices more often (measured on CPU)."""
    wanted = num_assignments // (4 * num_experts)
    return min(max(1 << max(wanted.bit_length() - 1, 0), _SMALLEST), _LARGEST)


def num_expert_blocks(num_assignments: int, num_experts: int) -> int:
    """Blocks that hold any way of handing the assignments out; no more than the assignments, for none is empty."""
    block = expert_block_slots(num_assignments, num_experts)
    return min(num_assignments, (num_assignments + num_experts * (block - 1)) // block)
