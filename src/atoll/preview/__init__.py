"""Preview URLs: ports of sandboxes under addresses that anybody can open who has been given them"""
