"""Compares the ICRC of every RoCE v2 packet in captures with what scapy's RoCE layer computes for it.

Scapy's is an implementation by other people; that is the point. It takes about a millisecond a packet, so of long
captures every n-th packet is checked, and the first few of each opcode.
"""

import collections
import sys

from scapy.all import PcapReader, Raw
from scapy.contrib.roce import BTH

MOST_SAMPLED = 4000
FIRST_OF_EACH_OPCODE = 20


def check(path):
    """Prints one line for `path`; returns whether all of it is right."""
    with PcapReader(path) as packets:
        count = sum(1 for _ in packets)
    stride = max(1, count // MOST_SAMPLED)
    seen = collections.Counter()
    checked = 0
    wrong = []
    with PcapReader(path) as packets:
        for number, packet in enumerate(packets, 1):
            if BTH not in packet:
                wrong.append(f"packet {number} is not RoCE v2 to scapy")
                continue
            bth = packet[BTH]
            key = (bth.opcode, packet.firstlayer().name)
            seen[key] += 1
            if seen[key] > FIRST_OF_EACH_OPCODE and number % stride:
                continue
            checked += 1
            # Scapy reads the last four bytes as the ICRC, least significant byte first as on the wire.
            carried = bth.icrc.to_bytes(4, "big")
            # The extended headers need no dissection: the ICRC covers them as bytes.
            body = bytes(bth.payload)
            bth.remove_payload()
            bth.add_payload(Raw(body))
            computed = bth.compute_icrc(b"")
            if carried != computed:
                wrong.append(
                    f"packet {number} (opcode {bth.opcode:#04x}, PSN {bth.psn:#08x}) carries {carried.hex()}, "
                    f"scapy computes {computed.hex()}"
                )
    print(f"scapy: {path}: {checked} of {count} packets checked, {len(wrong)} wrong")
    for line in wrong[:5]:
        print(f"  {line}")
    return count > 0 and not wrong


if __name__ == "__main__":
    sys.exit(0 if all([check(path) for path in sys.argv[1:]]) else 1)
