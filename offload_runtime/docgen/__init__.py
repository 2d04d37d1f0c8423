"""The reference pages, written from what the program itself knows; no torch.

schemas, codes, commands, facts, policies, cards, profiles, evidence -> Page -> text -> comparison with docs/
"""
