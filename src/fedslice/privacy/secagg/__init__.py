"""Secure aggregation: the server learns a sum of vectors and none of the vectors.

Practical Secure Aggregation for Privacy-Preserving Machine Learning
    Keith Bonawitz, Vladimir Ivanov, Ben Kreuter, Antonio Marcedone, H. Brendan McMahan, Sarvar Patel, Daniel Ramage,
    Aaron Segal, Karn Seth. CCS 2017.
Secure Single-Server Aggregation with (Poly)Logarithmic Overhead (SecAgg+)
    James Bell, Keith Bonawitz, Adrià Gascón, Tancrède Lepoint, Mariana Raykova. CCS 2020.

======== ===================================================== ===============================================
phase    client sends                                          server answers
======== ===================================================== ===============================================
keys     two public keys                                       the keys of the client's neighbours
shares   shares of its two secrets, encrypted for neighbours   the shares that neighbours made for the client
masked   its vector plus all masks                             the clients whose vectors arrived
check    (signed keys only) its signature of that answer       the neighbours' signatures
reveal   per neighbour a share of one of its two secrets       nothing: the server now knows the sum
======== ===================================================== ===============================================

Client u adds to its vector x_u a mask of its own and one for each neighbour,

    y_u = x_u + PRG(b_u) + sum over v > u of PRG(s_uv) - sum over v < u of PRG(s_uv).

In the sum masks of pairs cancel. For a client whose vector arrived the neighbours reveal their shares of b_u; for one
that was lost before, their shares of the key that all s_uv follow from. Nobody reveals both kinds for one client.
"""
