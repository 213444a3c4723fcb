"""Weights that come over to a model that generates: in the type it computes in, and proved to be the rounded ones."""

from pathlib import Path

import numpy as np
import pytest
from small_plans import MIXTURE, drawn_model, small_model

from mindgspo.config.schema import ReshardSection
from mindgspo.errors import WeightsError
from mindgspo.rollout.weights_folder import open_weights

pytestmark = pytest.mark.usefixtures("cpu_runtime")

SECTION = small_model(tie_word_embeddings=False, initializer_range=0.2, dtype="float16")
EXPERTS = small_model(**MIXTURE, num_hidden_layers=1, tie_word_embeddings=False, dtype="float16")


@pytest.fixture(scope="module")
def pair(cpu_runtime):
    """A trained model, and one that generates with its weights."""
    from mindgspo.models.weights import hold_in_compute_type
    from mindgspo.rollout.weight_transfer import WeightTransfer

    trained, generating = drawn_model(SECTION, seed=5), drawn_model(SECTION, seed=6)
    hold_in_compute_type(generating)
    transfer = WeightTransfer(trained, generating, SECTION, ReshardSection(verify="full"))
    transfer.push(1)
    return trained, generating, transfer


def test_only_routers_keep_float32(cpu_runtime) -> None:
    import mindspore as ms

    from mindgspo.models.weights import hold_in_compute_type

    model = drawn_model(EXPERTS, seed=0)
    names = [parameter.name for parameter in model.get_parameters()]
    hold_in_compute_type(model)
    assert [parameter.name for parameter in model.get_parameters()] == names
    kept = [parameter.name for parameter in model.get_parameters() if parameter.dtype == ms.float32]
    assert kept == ["model.layers.0.mlp.gate.weight"]


def test_weights_arrive_rounded_in_half_the_bytes(pair) -> None:
    from mindgspo.models.weights import weight_views

    trained, generating, transfer = pair
    old, new = weight_views(trained), weight_views(generating)
    assert old.keys() == new.keys()
    for name, values in old.items():
        assert values.dtype == np.float32 and new[name].dtype == np.float16
        assert (values.astype(np.float16) == new[name]).all(), name
    assert transfer.last is not None and 2 * transfer.last.copied == sum(values.nbytes for values in old.values())


def test_servers_find_one_version_which_stays_until_the_next(pair, tmp_path: Path) -> None:
    from mindgspo.rollout.weight_transfer import ServedWeights

    shared, loaded = tmp_path / "shared", []

    def load(folder: Path, version: int) -> None:
        with open_weights(folder) as weights:
            loaded.append((version, weights.version, *(path.name for path in shared.iterdir())))

    (shared / "version_00000006").mkdir(parents=True)  # a run was killed
    served = ServedWeights(pair[0], SECTION, shared)
    for version in (7, 9):
        served.push_weights(version, load)
    assert loaded == [(7, 7, "version_00000007"), (9, 9, "version_00000009")]
    assert [path.name for path in shared.iterdir()] == ["version_00000009"], "for servers that come back"
    served.close()
    assert not shared.exists()


def test_a_weight_that_is_not_the_rounded_one_is_found(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from mindgspo.reshard.resharder import Resharder

    _, _, transfer = pair
    right = Resharder.run

    def wrong(self, old, new):
        report = right(self, old, new)
        new["model.norm.weight"][3] = np.nextafter(new["model.norm.weight"][3], np.float16(9))
        return report

    with monkeypatch.context() as patched:
        patched.setattr(Resharder, "run", wrong)
        with pytest.raises(WeightsError, match=r"1 of \d+ compared parameters differ.*model\.norm\.weight"):
            transfer.push(2)
    transfer.push(3)
