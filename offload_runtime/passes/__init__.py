"""Graph passes: tag, partition, offload and reload, verify. A pass carries a plan out and never chooses."""
