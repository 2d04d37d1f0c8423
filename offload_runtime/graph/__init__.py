"""Questions to a joint forward-backward graph: names, layers, operator classes, storages, costs."""
