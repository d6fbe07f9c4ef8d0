"""Masks per row: the server learns a row's sum over the clients that name it, if enough of them do.

Billion-Scale Federated Learning on Mobile Clients: A Submodel Design with Tunable Privacy
    Chaoyue Niu, Fan Wu, Shaojie Tang, Lifeng Hua, Rongfei Jia, Chengfei Lv, Zhihua Wu, Guihai Chen. MobiCom 2020.

This goes along with a secure sum (:mod:`fedslice.privacy.secagg`) over the complete graph, whose clients have named
rows. A client's values at a row are masked by its own mask and by one for each other client that names the row, made
from the row's id. A sum over few clients would tell too much, so a row is *open* only if ``least`` clients share it:

* If fewer name it, nobody sends it.
* If some are lost before their values arrive, masks with them stay on the sum. The others take these off, but only
  where ``least`` of them are left. These masks come from keys that no share reveals, so nobody else can.
* A row is stuck if a client that should take masks off is lost as well.

What a client did not send or what stays closed can wait with it for a later round.

Whoever names a row shares it, with values or with zeros. So the server may learn the value of a single holder, but not
which of ``least`` clients that is; a summed count of holders tells it that there is one.
"""
