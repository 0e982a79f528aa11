"""Two runs side by side: may they be compared, and what do their launches say, measure by measure?"""
