"""Files of plain torch that train by a plan (`trainshed plan --emit`), and what cannot be one, in words.

writing       which parts a file has, and its text; limits: what no file has
styles        which style of torch divides a module, tried by one process that plays each rank
cuts          where stages begin, and what is sent; tried by one process that runs them one after the other
calls         the model's call by the script, and the gradients that a try is compared with
stage_code    a stage in plain torch: tried here, and pasted into the file
"""
