"""Messages as Kafka Connect's converters write them, with a schema registry.

- converter: the part of a converter that these messages need.
- avro: AvroConverter. protobuf: ProtobufConverter.
- messages: an epoch's messages, by their envelope's schemas.
"""
