"""The rule that keeps training and test items apart.

Each generator defines the *key* of an item: what determines its answer, whatever the names and the text around it. A
hash of that key alone decides which split the key belongs to, so that an item of one split can't be drawn for the
other, with any seed and in any process.
"""

import zlib

TEST_SHARE = 8  # one key in TEST_SHARE is reserved for tests


def is_test_key(key: str) -> bool:
    """True if items with this key are for testing only, False if they are for training only."""
    return zlib.crc32(key.encode()) % TEST_SHARE == 0
