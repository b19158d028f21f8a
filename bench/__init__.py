"""What does duly cost over the bare database, and does it slow down as the store grows?"""
