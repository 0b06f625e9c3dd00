"""Keys of a route about bearer tokens."""

from pathlib import Path

import pytest

from cuda_cyclegan.cli.options.tokens import token_source
from cuda_cyclegan.io.dicom_network.access_tokens import ClientCredentials
from cuda_cyclegan.pipelines.errors import ConfigError

URL = "https://idp.example.org/token?tenant=1"
WHOLE = {"token-url": URL, "client-id": "node", "client-secret-file": "/etc/secret"}


def keys(side: str, **values: str) -> dict[str, str]:
    return {f"{side}-{name}": value for name, value in values.items()}


@pytest.mark.parametrize("side", ["source", "destination"])
def test_tokens_come_from_a_file_or_from_an_endpoint(side: str) -> None:
    other = "destination" if side == "source" else "source"
    assert token_source(keys(other, **WHOLE), side) is None
    assert token_source(keys(side, token="token"), side) == Path("token")
    by_file = ClientCredentials(URL, "node", Path("/etc/secret"), "dicom")
    assert token_source(keys(side, **WHOLE, scope="dicom"), side) == by_file
    variable = {"token-url": URL, "client-id": "node", "client-secret-variable": "NODE_SECRET"}
    assert token_source(keys(side, **variable), side) == ClientCredentials(
        URL, "node", "NODE_SECRET"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token": "file"}, "source-token and source-token-url exclude each other"),
        ({"token-url": None}, "source-client-id needs source-token-url"),
        ({"client-id": None}, "source-token-url needs source-client-id"),
        ({"client-secret-file": None}, "needs source-client-secret-file or else"),
        ({"client-secret-variable": "NAME"}, "needs source-client-secret-file or else"),
        ({"token-url": "http://idp.example.org/token"}, "a client secret needs https://"),
        ({"token-url": "idp.example.org/token"}, "the token URL of the route is not one such as"),
        ({"token-url": "https://me:pw@idp/token"}, "the token URL of idp is not one such as"),
        ({"token-url": "https://idp/token#part"}, "has a fragment"),
        ({"client-id": 5}, "source-client-id must be a text"),
    ],
)
def test_contradicting_options_are_refused(changes: dict[str, object], reason: str) -> None:
    asked = {key: value for key, value in {**WHOLE, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=reason):
        token_source(keys("source", **asked), "source")  # pyright: ignore[reportArgumentType]


def test_a_secret_in_the_place_of_a_name_is_not_quoted() -> None:
    asked = {"token-url": URL, "client-id": "node", "client-secret-variable": "hunter-2"}
    with pytest.raises(ConfigError) as raised:
        token_source(keys("source", **asked), "source")
    assert "hunter" not in str(raised.value)
