"""The references of docs/, generated from the program itself."""
