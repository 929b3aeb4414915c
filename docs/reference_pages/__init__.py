"""The references of docs/, each made of what the program itself knows."""
