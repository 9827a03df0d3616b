"""Files as users have them: each test makes a small one, and knows the right values."""

import time
from pathlib import Path

import numpy as np
import pandas as pd

from dfact.data.readers.columnar.columns import read_cells
from dfact.data.readers.frames import InputFrame, open_frame


def seconds_to_read(n_columns: int) -> float:
    names = [f"Q{j}" for j in range(n_columns)]
    table = open_frame(InputFrame(pd.DataFrame(np.ones((2, n_columns)), columns=names)))
    began = time.process_time()
    assert [cells.numbers.shape for cells in read_cells(table, names, [], [])] == [(2, n_columns)]
    return time.process_time() - began


def test_the_time_of_reading_grows_with_the_columns_not_with_their_square() -> None:
    seconds_to_read(100)  # what is imported and compiled once
    assert seconds_to_read(12_000) < 8 * min(seconds_to_read(3_000) for _ in range(3)) + 0.2
