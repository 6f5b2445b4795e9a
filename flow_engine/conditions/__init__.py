"""Conditions over facts: one grammar for flows and for the tools of agents, and the language of flows.

`lexing` and `syntax` read both; `language` is what a flow's condition may say, `evaluation` what it means,
`review` what can be said about it without any values.
"""
