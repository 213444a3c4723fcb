"""What MindFormers' own code makes of weights. Started by `test_mindformers_mcore`, with mindformers 2.1.

    python mcore_child.py FOLDER

FOLDER/models.json: {model: its sizes in the names of MindFormers' TransformerConfig, and `class`}. Of each model
<model>.hf.npz holds Hugging Face's tensors, <model>.<layout>.npz those of our conversion; <model>.<layout>.found.npz
then holds what MindFormers makes of them: `to/<name>` of the former, `from/<name>` of the latter.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import mindformers.parallel_core.utils.model_mixin as mixins
import numpy as np
from mindformers.models.glm4.utils import Glm4PreTrainedModel
from mindformers.models.qwen3.modeling_qwen3_train import TrainingQwen3ForCausalLM
from mindformers.models.qwen3_moe.modeling_qwen3_moe_train import TrainingQwen3MoeForCausalLM
from mindformers.parallel_core.inference import weights_utils

CLASSES = {"qwen3": TrainingQwen3ForCausalLM, "qwen3_moe": TrainingQwen3MoeForCausalLM, "glm4": Glm4PreTrainedModel}


class Converter(mixins.TrainModelMixin, mixins.ModelMixin):
    """The conversions of a model without its cells, which exist on Ascend alone."""

    def __init__(self, model: type, config: SimpleNamespace) -> None:
        self.weight_mapping, self.transformer_config = model.weight_mapping, config


def by_hand_of_training(model: type, config: SimpleNamespace, hf: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`convert_weight_dict`, the loader of static graphs."""
    return model.convert_weight_dict(Converter(model, config), dict(hf))


def by_template(model: type, config: SimpleNamespace, mcore: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The operators of its templates, towards Hugging Face."""
    found: dict[str, np.ndarray] = {}
    for operator in model.weight_converters:
        if hasattr(operator, "set_model_config"):
            operator.set_model_config(config)
        if hasattr(operator, "optimizer_parallel_size"):
            operator.optimizer_parallel_size = 1
        (pattern,) = operator.mf_names
        names = (
            [pattern.replace("{}", str(layer)) for layer in range(config.num_layers)] if "{}" in pattern else [pattern]
        )
        for name in names:
            if name in mcore:
                found |= operator({name: mcore[name]}, mf_to_hf=True)
    return found


def by_generation(model: type, config: SimpleNamespace, mcore: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the cells for generation make of an mcore file: parts that stay together."""
    weights_utils.get_tensor_model_parallel_world_size = lambda: 1
    weights_utils.get_tensor_model_parallel_rank = lambda: 0
    found = {}
    for name, array in mcore.items():
        if ".linear_qkv." in name:
            array = weights_utils.deal_training_qkv_weight(array, config)
        elif ".linear_fc1." in name:
            array = weights_utils.deal_training_ffn_weight(array, config)
        found[name] = array
    return found


def main(folder: Path) -> None:
    mixins.is_legacy_model = lambda: False
    for name, sizes in json.loads((folder / "models.json").read_text()).items():
        model = CLASSES[sizes.pop("class")]
        hf = dict(np.load(folder / f"{name}.hf.npz"))
        for layout in ("turns", "contiguous"):
            mcore = dict(np.load(folder / f"{name}.{layout}.npz"))
            config = SimpleNamespace(
                **sizes,
                tensor_model_parallel_size=1,
                expert_model_parallel_size=1,
                use_contiguous_weight_layout_attention=layout == "contiguous",
                use_interleaved_weight_layout_mlp=layout != "contiguous",
            )
            if model is Glm4PreTrainedModel:
                names = {weight: Converter(model, config).convert_name(weight) for weight in hf}
                to = {
                    mixins.ModelMixin.convert_concat_name(Converter(model, config), one): np.zeros(0)
                    for one in names.values()
                }
                back = by_generation(model, config, mcore) if layout == "turns" else {}
            else:
                to = by_hand_of_training(model, config, hf)
                back = by_template(model, config, mcore) if layout == "turns" else {}
            found = {f"to/{weight}": array for weight, array in to.items()}
            found |= {f"from/{weight}": array for weight, array in back.items()}
            np.savez(folder / f"{name}.{layout}.found.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
