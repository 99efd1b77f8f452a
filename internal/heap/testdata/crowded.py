"""Has a list of very many references to one object, and tensors."""
import json
import os
import sys

import standin


class Tensor(standin.TensorBase):
    pass


class Point:
    pass


points = [Point()] * int(sys.argv[1])
kept = [Tensor(4) for _ in range(20)]
print(json.dumps({"pid": os.getpid(), "truth": {}}), flush=True)
sys.stdin.readline()
