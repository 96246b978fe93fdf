"""The engine model against published figures: canonical graphs of the published workloads, built without torch."""
