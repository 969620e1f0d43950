"""What a log of level E shows of the rules: who was sent what is judged, though reads and rounds are unseen."""
