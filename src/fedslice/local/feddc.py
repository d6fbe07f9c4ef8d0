"""FedDC: the drift of FedDyn and the control variates of SCAFFOLD together.

FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction
    Liang Gao, Huazhu Fu, Li Li, Yingwen Chen, Ming Xu, Cheng-Zhong Xu. CVPR 2022.
"""

from pydantic.dataclasses import dataclass

from fedslice.core.part import CHECKED
from fedslice.local.feddyn import FedDyn
from fedslice.local.variates import Variates


@dataclass(frozen=True, config=CHECKED)
class FedDC(FedDyn, Variates):
    """Minimises F_i(x) + (α/2)·‖x − (X − d_i)‖² + ⟨x, c − c_i⟩, with the client's drift d_i and its variate c_i.

    Up to a constant the first two terms are FedDyn's. Here c_i⁺ is the mean gradient of all but the last term: the
    pull of the drift is in it, and c moves coordinates that the client's own batches never name.
    """

    label = "feddc"
    follows_gradient = False
