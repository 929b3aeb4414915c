"""The link: one TCP connection between a gateway and an instance, carrying small typed frames.

Why not a Ray call: a link frame costs tens of microseconds where a Serve handle call costs over a millisecond, one
frame carries all tokens of an engine step, and a dead peer is seen at once as a closed connection. Ray places, starts,
watches and replaces the processes; links only carry what requests say to instances and what instances answer.
"""
