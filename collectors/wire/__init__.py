"""Wire v1: the contract between a node and a gateway.

``records`` are the messages, ``codec`` turns them into bytes and back, ``limits`` bound both sides.
Both packages import this one; it imports neither.
"""
