"""The rule that keeps training and test items apart.

Each generator names a *key* of an item: what makes its answer new, whatever the names and the dressing around it. A
hash of that key alone decides which split the key belongs to, so that an item of one split can't be drawn for the
other, with any seed and in any process.
"""

import zlib

TEST_SHARE = 8  # one key in TEST_SHARE is reserved for tests


def is_test_key(key: str) -> bool:
    """True where items with this key may only be tested on, False where they may only be trained on."""
    return zlib.crc32(key.encode()) % TEST_SHARE == 0
