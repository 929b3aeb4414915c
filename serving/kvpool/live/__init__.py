"""The pool's servers, clients, controller and Ray replica."""
