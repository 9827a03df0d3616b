"""Arrays of all memory orders and types that are written and read unchanged."""

import numpy as np

ARRAYS = {
    "by rows": np.arange(12.0).reshape(3, 4),
    "by columns": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
    "every second": np.arange(24).reshape(4, 6)[::2, ::2],
    "one number": np.asarray(0.1),
    "nothing": np.empty((0, 5), np.uint8),
    "words": np.asarray(["Ä", "b"]),
    "truths": np.asarray([True, False]),
    "three modes": np.arange(24.0).reshape(2, 3, 4).transpose(2, 1, 0),
}
