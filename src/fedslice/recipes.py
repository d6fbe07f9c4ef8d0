"""The table of named methods. Each is one line; any other combination is as good (see :class:`Recipe`)."""

from typing import Any

from fedslice.codecs import LBGM, STC, FetchSGD, Sign, StreamingSubspace
from fedslice.combine import Coverage, HeatCorrected, Mean
from fedslice.errors import unknown
from fedslice.local import APFL, FDRL, Ditto, FedBABU, FedDC, FedDyn, FedGen, FedNTD, FedRep, Moon, Prox, Scaffold
from fedslice.recipe import Recipe
from fedslice.select import Everyone, FedCS, Oort, Pooled
from fedslice.server import Adagrad, Adam, Drift, Momentum, ScaffoldApprox, Yogi
from fedslice.slices import ChannelDropout, FeatureRows, Shared, Width

RECIPES: dict[str, Recipe] = {
    "fedavg": Recipe(),
    "fedprox": Recipe(local=Prox(mu=0.01)),
    "scaffold": Recipe(local=Scaffold(), combine=Mean(weights="uniform")),
    "scaffold-approx": Recipe(server=ScaffoldApprox()),
    "feddyn": Recipe(local=FedDyn(), combine=Mean(weights="uniform"), server=Drift()),
    "feddc": Recipe(local=FedDC(), combine=Mean(weights="uniform"), server=Drift()),
    "moon": Recipe(local=Moon()),
    "fedgen": Recipe(local=FedGen()),
    "fedntd": Recipe(local=FedNTD()),
    "fedavgm": Recipe(server=Momentum()),
    "fedadagrad": Recipe(server=Adagrad()),
    "fedadam": Recipe(server=Adam()),
    "fedyogi": Recipe(server=Yogi()),
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
    "sign+flss": Recipe(codec=StreamingSubspace(inner="sign"), combine=Mean(weights="uniform")),
    "fedprox+flss": Recipe(local=Prox(mu=0.01), codec=StreamingSubspace(), combine=Mean(weights="uniform")),
    "stc": Recipe(codec=STC()),
    "fetchsgd": Recipe(codec=FetchSGD()),
    "lbgm": Recipe(codec=LBGM()),
    "fdrl": Recipe(slices=Shared("shared.*"), local=FDRL(), combine=Mean(weights="uniform")),
    "fedper": Recipe(slices=Shared("body")),
    "fedrep": Recipe(slices=Shared("body"), local=FedRep()),
    "fedbabu": Recipe(slices=Shared("body"), local=FedBABU()),
    "lg-fedavg": Recipe(slices=Shared("head")),
    "ditto": Recipe(local=Ditto()),
    "apfl": Recipe(local=APFL()),
    "local": Recipe(slices=Shared("none")),
}


def get(name: str, **options: Any) -> Recipe:
    """A named method, with its default settings or others.

    >>> get("fedsubavg", lr=0.2, max_coef=10).combine.max_coef
    10.0
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name].with_options(options)
