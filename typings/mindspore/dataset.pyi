from collections.abc import Iterator

import numpy as np

class MindDataset:
    def __init__(
        self, dataset_files: str, columns_list: list[str], *, shuffle: bool, num_parallel_workers: int
    ) -> None: ...
    def create_dict_iterator(
        self, num_epochs: int = -1, output_numpy: bool = False
    ) -> Iterator[dict[str, np.ndarray]]: ...
