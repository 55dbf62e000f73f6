ticket-agent-gap/v1 sha256=1536a7ea5b1a06de4fb2effed124e91ebef621c915d06fd0054d880875c2c764 bytes=114
{"epoch":1,"first":7,"through":9,"reason":"told by the operator of the hive","by":"root","unix_ms":1795999236308}
