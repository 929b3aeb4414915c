"""An instance's threads, links, memory and Ray replica."""
