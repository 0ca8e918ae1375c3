"""Which encoder is the champion and why: candidates, the gate, cards, registered versions, exports."""
