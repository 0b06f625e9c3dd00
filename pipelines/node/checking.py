"""Whether routes can work: their models load, and their destinations answer."""

from collections.abc import Iterator, Mapping

from ...engine.model.model_file import load_model
from ...io.dicom_network.errors import NetworkError
from ...io.dicom_network.sending import sending_to
from ...io.dicom_network.tls import Certificates
from ..cycle.back_model import back_model
from ..errors import ConfigError
from .delivery import Destination
from .routes import Route


def check_routes(routes: Mapping[str, Route], certificates: Certificates | None) -> None:
    """Raise ConfigError, ModelFileError, PatchShapeError or SettingsError if one cannot work."""
    for route in routes.values():
        if route.uses_tls and certificates is None:
            raise ConfigError(
                f"The route {route.title} sends over TLS, which needs setting tls-certificate, "
                "setting tls-key and setting tls-trusted."
            )
        model = load_model(route.request.model)
        model.network.graph.check_patch(route.request.options.patch or model.card.patch)
        back_model(model, route.request.options)


def check_destinations(
    routes: Mapping[str, Route], certificates: Certificates | None
) -> Iterator[tuple[str, list[str], str | None]]:
    """Each destination, the routes that send there, and what is wrong with it; None if nothing."""
    for destination in dict.fromkeys(map(Destination.of, routes.values())):
        titles = [title for title, route in routes.items() if Destination.of(route) == destination]
        yield str(destination.peer), titles, _trouble(destination, certificates)


def _trouble(destination: Destination, certificates: Certificates | None) -> str | None:
    try:
        context = certificates.client_context() if certificates and destination.uses_tls else None
        with sending_to(destination.peer, destination.calling, context) as link:
            link.echo()
    except NetworkError as error:
        return str(error)
    return None
