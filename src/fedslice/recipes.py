"""The table of named methods. Each is one line; any other combination is as good (see :class:`Recipe`)."""

from typing import Any

from fedslice.codecs import LBGM, STC, FetchSGD, Sign, StreamingSubspace
from fedslice.combine import Coverage, HeatCorrected, Mean
from fedslice.core.errors import unknown
from fedslice.local import APFL, FDRL, Ditto, FedBABU, FedDyn, FedGen, FedNTD, FedRep, Local, Moon, Prox, Scaffold
from fedslice.recipe import Recipe
from fedslice.select import Everyone, FedCS, Oort, Pooled
from fedslice.server import Drift, ScaffoldApprox, ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width

RECIPES: dict[str, Recipe] = {
    "fedavg": Recipe(),
    "fedprox": Recipe(local=Local(Prox(mu=0.01))),
    "scaffold": Recipe(local=Local(Scaffold()), combine=Mean(weights="uniform")),
    "scaffold-approx": Recipe(server=ScaffoldApprox()),
    "feddyn": Recipe(local=Local(FedDyn()), combine=Mean(weights="uniform"), server=Drift()),
    "feddc": Recipe(local=Local([FedDyn(), Scaffold()]), combine=Mean(weights="uniform"), server=Drift()),
    "moon": Recipe(local=Local(Moon())),
    "fedgen": Recipe(local=Local(FedGen())),
    "fedntd": Recipe(local=Local(FedNTD())),
    "fedavgm": Recipe(server=ServerMomentum()),
    "fedadagrad": Recipe(server=ServerAdagrad()),
    "fedadam": Recipe(server=ServerAdam()),
    "fedyogi": Recipe(server=ServerYogi()),
    "fedsubavg": Recipe(slices=FeatureRows(), combine=HeatCorrected()),
    "submodelavg": Recipe(slices=FeatureRows(), combine=Coverage()),
    "centralsgd": Recipe(select=Pooled()),
    "feddd": Recipe(select=Everyone(), slices=ChannelDropout(), combine=Coverage()),
    "fedcs": Recipe(select=FedCS()),
    "oort": Recipe(select=Oort()),
    "heterofl": Recipe(
        slices=Width(widths="1,0.5,0.25,0.125,0.0625", own_labels=True), combine=Coverage(weights="uniform")
    ),
    "fjord": Recipe(slices=Width(widths="0.2,0.4,0.6,0.8,1", drawn=True), combine=Coverage()),
    "flss": Recipe(codec=StreamingSubspace(), combine=Mean(weights="uniform")),
    "sign": Recipe(codec=Sign()),
    "sign+flss": Recipe(codec=StreamingSubspace(inner=Sign()), combine=Mean(weights="uniform")),
    "fedprox+flss": Recipe(local=Local(Prox(mu=0.01)), codec=StreamingSubspace(), combine=Mean(weights="uniform")),
    "stc": Recipe(codec=STC()),
    "fetchsgd": Recipe(codec=FetchSGD()),
    "lbgm": Recipe(codec=LBGM()),
    "fdrl": Recipe(slices=Shared("shared.*"), local=Local(FDRL()), combine=Mean(weights="uniform")),
    "fedper": Recipe(slices=Shared("body")),
    "fedrep": Recipe(slices=Shared("body"), local=Local(FedRep())),
    "fedbabu": Recipe(slices=Shared("body"), local=Local(FedBABU())),
    "lg-fedavg": Recipe(slices=Shared("head")),
    "ditto": Recipe(local=Local(Ditto())),
    "apfl": Recipe(local=Local(APFL())),
    "local": Recipe(slices=Shared("none")),
}

# What each method does, in a line for `fedslice list`.
ABOUT: dict[str, str] = {
    "fedavg": "Average the clients' updates, weighted by samples.",
    "fedprox": "FedAvg with a term that pulls clients to the server's model.",
    "scaffold": "Correct the drift of local steps by control variates.",
    "scaffold-approx": "FedAvg whose server steps along an average of past rounds.",
    "feddyn": "Regularise each client by its past drift; the server adds it.",
    "feddc": "Track and correct each client's drift from the server's model.",
    "moon": "Contrast features with the server's model and the last own one.",
    "fedgen": "Train also on features from a generator learned by the server.",
    "fedntd": "Distil the server's model on all classes but the sample's own.",
    "fedavgm": "FedAvg with momentum on the server.",
    "fedadagrad": "FedAvg with Adagrad on the server.",
    "fedadam": "FedAvg with Adam on the server.",
    "fedyogi": "FedAvg with Yogi on the server.",
    "fedsubavg": "Send only own table rows; scale up rows that few clients hold.",
    "submodelavg": "Send only own table rows; average each row over its senders.",
    "centralsgd": "Pool all samples in one place: a reference, not federated.",
    "feddd": "All clients send their important channels, slow ones fewer.",
    "fedcs": "Select the fastest clients, up to a budget of parameters.",
    "oort": "Select clients by utility: their losses and their speed.",
    "heterofl": "Clients have networks of five fixed widths, 1 to 1/16.",
    "fjord": "Draw the width of each client's network again every round.",
    "flss": "Send coefficients in a subspace that earlier updates span.",
    "sign": "Send a sign per value and one magnitude, with error feedback.",
    "sign+flss": "FLSS whose full updates travel as signs.",
    "fedprox+flss": "FedProx whose updates travel as in FLSS.",
    "stc": "Send the strongest entries as signs and one magnitude.",
    "fetchsgd": "Send count sketches, which the server adds and unsketches.",
    "lbgm": "Send one number while an update resembles the last full one.",
    "fdrl": "Share an encoder; keep a second, unlike one and the head.",
    "fedper": "Share all layers but the last, which each client keeps.",
    "fedrep": "FedPer that trains first the own layer, then the shared ones.",
    "fedbabu": "FedPer whose last layer stays as initialised.",
    "lg-fedavg": "Share only the last layer; each client keeps the others.",
    "ditto": "FedAvg, and per client a model of its own near the server's.",
    "apfl": "FedAvg, and per client a model mixed of its own and the shared.",
    "local": "Every client trains alone; nothing is sent.",
}

_FEDSUBAVG = "FedSubAvg, appendix D.4 and tables 4 and 5"
_FEDDD = "FedDD, table 4 and section 6"
_FLSS = "FLSS, section 4 and appendix D"
_FLSS_LOCAL = {
    "local.optimizer.lr": 0.01,
    "local.sampler.epochs": 5,
    "local.sampler.batch_size": 128,
    "local.optimizer.momentum": 0,
}
_SUBSPACE = {"codec.rank": 50, "codec.warmup": 200, "codec.every": 5, "codec.decay": 1}
_STEPS = {"local.sampler.iterations": 10, "local.sampler.batch_size": "5; Amazon 4, Alibaba 32"}

# What papers give: where, and values by the full name of a setting; text where they differ by task.
PAPER: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": (
        _FEDSUBAVG,
        {"select.cohort": "50; Amazon 100", "local.optimizer.lr": "0.1; Alibaba 1", **_STEPS},
    ),
    "fedprox": (_FEDSUBAVG, {"local.prox.mu": 0.01, "local.optimizer.lr": "0.1; Alibaba 1", **_STEPS}),
    "scaffold": (_FEDSUBAVG, {"server.server_lr": 1, "local.optimizer.lr": "0.1; Alibaba 1", **_STEPS}),
    "fedadam": (
        _FEDSUBAVG,
        {
            "local.optimizer.lr": "0.1; Sent140 and Alibaba 1",
            "server.server_lr": "1; Amazon and Alibaba 0.001",
            "server.beta1": 0.9,
            "server.beta2": "0.99; Amazon 0.999",
            **_STEPS,
        },
    ),
    "fedsubavg": (
        _FEDSUBAVG,
        {
            "select.cohort": "50; Amazon 100",
            "local.optimizer.lr": "0.1; Amazon 0.05, Alibaba 0.3",
            "combine.weights": "samples",
            **_STEPS,
        },
    ),
    "feddd": (
        _FEDDD,
        {
            "slices.budget": 0.6,
            "slices.most": 0.8,
            "slices.full_every": "5; testbed 1",
            "local.sampler.epochs": "MNIST 1, FMNIST 3, CIFAR10 5",
        },
    ),
    "fedcs": (_FEDDD, {"select.budget": 0.6}),
    "oort": (_FEDDD, {"select.budget": 0.6, "select.alpha": 2}),
    "moon": (_FLSS, {"local.moon.mu": 0.01, "local.moon.tau": 1, **_FLSS_LOCAL}),
    "feddyn": (_FLSS, {"local.feddyn.alpha": 0.5, **_FLSS_LOCAL}),
    "feddc": (_FLSS, {"local.feddyn.alpha": 0.5, **_FLSS_LOCAL}),
    "fedgen": (_FLSS, {"local.fedgen.server_steps": 1000, "local.fedgen.generator_lr": 0.005, **_FLSS_LOCAL}),
    "fedntd": (_FLSS, {"local.fedntd.beta": 0.001, "local.fedntd.tau": 1, **_FLSS_LOCAL}),
    "flss": (_FLSS, _SUBSPACE | _FLSS_LOCAL),
    "sign+flss": (_FLSS, _SUBSPACE | _FLSS_LOCAL),
    "fedprox+flss": (_FLSS, {"local.prox.mu": 0.01} | _SUBSPACE | _FLSS_LOCAL),
    "sign": (_FLSS, _FLSS_LOCAL),
    "stc": (_FLSS, {"codec.share": "1/32"} | _FLSS_LOCAL),
    "fetchsgd": (_FLSS, {"codec.share": 0.25} | _FLSS_LOCAL),
    "lbgm": (_FLSS, {"codec.delta": 0.05} | _FLSS_LOCAL),
    "fdrl": (
        "FDRL, published code",
        {
            "select.cohort": 5,
            "local.optimizer.lr": 0.01,
            "local.sampler.epochs": 5,
            "local.sampler.batch_size": 10,
            "local.optimizer.momentum": 0.5,
            "local.optimizer.weight_decay": 1e-4,
            "local.fdrl.alpha": 1,
            "local.fdrl.beta": 1,
        },
    ),
}


def get(name: str, **options: Any) -> Recipe:
    """A named method, with its default settings or others.

    >>> get("fedsubavg", lr=0.2, max_coef=10).combine.max_coef
    10.0
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name].with_options(options)
