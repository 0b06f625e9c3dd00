"""The arithmetic that a request and the devices for it come to."""

import pytest

from cuda_cyclegan.engine.devices import Device
from cuda_cyclegan.engine.errors import DeviceUnavailableError
from cuda_cyclegan.pipelines.decisions import chosen_precision
from cuda_cyclegan.pipelines.errors import SettingsError

CPU = Device("cpu", "fp32", ("fp32",), "no CUDA device is used: there is no driver")
AMPERE = Device("cuda", "fp16", ("fp16", "bf16", "tf32", "fp32"))
PROVIDER = Device("onnxruntime", "fp32", ("fp32",), provider="CoreML")
TURING = Device("cuda", "fp16", ("fp16", "fp32"), index=1)


def test_requested_precision_counts_if_all_devices_have_it() -> None:
    assert chosen_precision(None, [AMPERE, TURING], "cuda") == "fp16"
    assert chosen_precision("fp32", [AMPERE, TURING], "cuda") == "fp32"
    assert chosen_precision("bf16", [AMPERE], "cuda") == "bf16"


def test_precision_that_one_device_lacks_is_refused() -> None:
    with pytest.raises(SettingsError, match="GPU 1 supports only fp16 and fp32; bf16 needs"):
        chosen_precision("bf16", [AMPERE, TURING], "cuda")
    with pytest.raises(SettingsError, match=r"The CPU computes only in .*, not in fp16"):
        chosen_precision("fp16", [CPU], "cpu")
    with pytest.raises(SettingsError, match="Device onnxruntime:CoreML computes only in fp32"):
        chosen_precision("fp16", [PROVIDER], "onnxruntime:CoreML")
    with pytest.raises(DeviceUnavailableError, match="there is no driver"):
        chosen_precision("fp16", [CPU], "auto")
