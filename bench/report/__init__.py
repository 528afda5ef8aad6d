"""The record of the last measurements, the page and the plots made from it, and the facts about
the machine. Nothing here measures."""
