"""STUB."""
from pathlib import Path
import numpy as np, hashlib
from .architectures import ResNetSpec, build
from .card import *
from .graph import Network
from .model import Model
from .errors import ModelFileError
def load_model(path: Path) -> Model:
    try: data=path.read_bytes()
    except OSError as e: raise ModelFileError(f"Model {path} cannot be read ({e.strerror}).") from e
    if not data.startswith(b"MODEL"): raise ModelFileError(f"{path} is not a model file.")
    spec=ResNetSpec(1,1,4,1)
    g=build(spec); rng=np.random.default_rng(0)
    w={n:rng.normal(0,.05,s).astype(np.float32) for n,s in g.weight_shapes()}
    card=ModelCard("demo",spec,"T1","T2",("T1",),("T2",),"RAS",None,(16,16,16),MinMax(),MinMax(),"edge",Provenance("x","0","l","i"),Reference("0","0","cuda-cyclegan"))
    z=np.zeros((1,1,32,32,32),np.float32)
    return Model(card,Network(g,w),z,z,hashlib.sha256(data).hexdigest())
