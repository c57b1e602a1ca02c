"""Each module runs in the environment of its own framework: `tests/consumers/adapters/test_examples.py` starts them."""

collect_ignore_glob = ["*.py"]
