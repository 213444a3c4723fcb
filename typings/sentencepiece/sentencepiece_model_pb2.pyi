from collections.abc import Sequence

class NormalizerSpec:
    add_dummy_prefix: bool
    escape_whitespaces: bool
    precompiled_charsmap: bytes
    remove_extra_whitespaces: bool

class TrainerSpec:
    BPE: int
    model_type: int

class ModelProto:
    class SentencePiece:
        CONTROL: int
        USER_DEFINED: int
        piece: str
        type: int

    normalizer_spec: NormalizerSpec
    pieces: Sequence[SentencePiece]
    trainer_spec: TrainerSpec
    @staticmethod
    def FromString(s: bytes) -> ModelProto: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802
