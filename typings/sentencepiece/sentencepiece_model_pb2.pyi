from collections.abc import Iterator

class NormalizerSpec:
    add_dummy_prefix: bool
    escape_whitespaces: bool
    name: str
    precompiled_charsmap: bytes
    remove_extra_whitespaces: bool

class TrainerSpec:
    BPE: int
    byte_fallback: bool
    model_type: int
    unk_id: int
    vocab_size: int

class ModelProto:
    class SentencePiece:
        CONTROL: int
        USER_DEFINED: int
        piece: str
        type: int

    class Pieces:
        def add(self, *, piece: str, score: float, type: int) -> ModelProto.SentencePiece: ...
        def __iter__(self) -> Iterator[ModelProto.SentencePiece]: ...
        def __len__(self) -> int: ...

    normalizer_spec: NormalizerSpec
    pieces: Pieces
    trainer_spec: TrainerSpec
    @staticmethod
    def FromString(s: bytes) -> ModelProto: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802
