"""The model registry: promotion gate, champion, model cards, registered versions, exports, drift and retraining."""
