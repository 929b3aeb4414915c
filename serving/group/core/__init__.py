"""Decisions of a group of ranks: members, epochs, growth and loss, expert maps, moves, pace. Time is passed in."""
