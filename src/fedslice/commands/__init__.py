"""The commands, by what they are for: looking at what there is, training, and looking at runs."""

from collections.abc import Callable

from fedslice.commands import clients, exhibit, explain, export, features, look, train
from fedslice.commands.app import Command, app

# In the order in which help lists them.
_COMMANDS: dict[str, Callable[..., None]] = {
    "list": look.list_,
    "explain": explain.explain,
    "inspect": look.inspect,
    "run": train.run,
    "compare": train.compare,
    "reproduce": exhibit.reproduce,
    "watch": look.watch,
    "report": look.report,
    "clients": clients.clients,
    "features": features.features,
    "export": export.export,
}
for _name, _function in _COMMANDS.items():
    app.command(_name, cls=Command)(_function)

__all__ = ["app"]
