"""Cards that are only described: one of each compute capability that programs are compiled for."""

from collections.abc import Mapping

from cuda_cyclegan.engine.compiler.card_properties import CardProperties

KIB, MIB = 1 << 10, 1 << 20

T4 = CardProperties((7, 5), 40, 4 * MIB, 64 * KIB, 64 * KIB)
A100 = CardProperties((8, 0), 108, 40 * MIB, 163 * KIB, 164 * KIB)
A10 = CardProperties((8, 6), 72, 6 * MIB, 99 * KIB, 100 * KIB)
L4 = CardProperties((8, 9), 58, 48 * MIB, 99 * KIB, 100 * KIB)
H200 = CardProperties((9, 0), 132, 60 * MIB, 227 * KIB, 228 * KIB)
B200 = CardProperties((10, 0), 148, 126 * MIB, 227 * KIB, 228 * KIB)
RTX_PRO_6000 = CardProperties((12, 0), 188, 128 * MIB, 99 * KIB, 100 * KIB)

CARDS: Mapping[str, CardProperties] = {
    f"{card.capability[0]}.{card.capability[1]}": card
    for card in (T4, A100, A10, L4, H200, B200, RTX_PRO_6000)
}
