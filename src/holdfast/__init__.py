"""Holdfast: a prepaid-credit service in which no credit is ever lost, doubled or spent twice."""

__version__ = "1.0.0"
